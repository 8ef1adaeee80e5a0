"""What temperature and top-p do to the texts of a model."""
