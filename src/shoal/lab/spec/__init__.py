"""What a lab is to be: values, and reading them from TOML."""
