"""What a run leaves behind: ``report.json``, the page and the badges, the scripts, and the lines in the terminal."""
