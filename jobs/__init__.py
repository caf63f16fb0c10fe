"""Programs: each module is one command. `jobs.lake` is what they are wired from."""
