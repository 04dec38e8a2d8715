"""Settings of a run (`settings.py`) and the TOML presets."""
