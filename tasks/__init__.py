"""The library: raw text in, a released language model out. It knows nothing of Airflow."""
