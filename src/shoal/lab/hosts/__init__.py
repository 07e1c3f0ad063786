"""What goes on on the hosts: commands and all that they start, background flows."""
