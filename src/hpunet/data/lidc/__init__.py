"""LIDC-IDRI: published crops (crops.py), and their import from the original DICOM and XML files (importer.py)."""
