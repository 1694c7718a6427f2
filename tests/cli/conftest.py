"""What the tests of the command line share with those of the API."""

from tests.backend.conftest import clean_environment, models_dir  # noqa: F401
