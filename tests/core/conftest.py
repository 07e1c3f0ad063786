"""Tests in the folders of the code; what several folders build their cases from lies here."""
