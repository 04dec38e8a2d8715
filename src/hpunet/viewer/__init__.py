"""`hpunet view`: hypotheses in the browser, for a person to choose and correct one. Start at server.py."""
