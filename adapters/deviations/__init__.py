"""What known implementations get wrong: one TOML file for each, named after the implementation."""
