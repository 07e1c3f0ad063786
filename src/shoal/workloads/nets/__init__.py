"""One file per family of models. Each has `build(request)`; models.py has the list."""
