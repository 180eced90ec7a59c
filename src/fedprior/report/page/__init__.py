"""Pages: complete in one file, offline, light and dark, for a screen, a phone and paper."""
