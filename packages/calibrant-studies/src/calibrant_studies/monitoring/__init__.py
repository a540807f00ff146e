"""How often the monitor and the usual checks raise false alarms, and how soon true ones."""
