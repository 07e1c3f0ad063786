"""What a cluster is to be, and what is to be trained on it: values, and reading them from TOML."""
