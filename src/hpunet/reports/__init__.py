"""Figures and the report page, from files that runs saved; needs no torch. Start reading at page.py."""
