"""The runner behind `make run`, `make up` and `make down`: one real Airflow on this machine."""
