"""How much loss a training forgives: the measurement behind `shoal profile-loss`."""
