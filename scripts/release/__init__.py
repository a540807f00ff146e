"""What a release is made of: one version everywhere, files to be read for years, wheels."""
