"""Other libraries that train in parallel, each used the way its own documentation shows.

Adding one is one file here and one line in `all_libraries`. None of them is needed by Shoal itself;
what is not installed is skipped.
"""
