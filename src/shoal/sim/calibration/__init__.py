"""Loss for flows: what transports make of it is measured on packets once, and looked up after."""
