"""Examples: small applications that show what graphs can do."""
