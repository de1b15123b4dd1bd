"""What a run leaves behind: ``report.json`` and its schema, the summary in the terminal, reproduction scripts."""
