"""Everything that trains with torch; `import calibrant` does not load it."""
