"""A job's time by formulas (alpha-beta): instant, for any number of workers, if all is regular."""
