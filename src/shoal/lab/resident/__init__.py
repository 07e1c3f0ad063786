"""Labs that stay up: their process (`python -m shoal.lab.resident`), and visiting them."""
