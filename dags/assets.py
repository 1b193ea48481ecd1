"""Every asset, named once. DAGs announce and await these, never each other."""

from airflow.sdk import Asset

# One partition per snapshot date. An event carries {corpus, hash, snapshot, read, kept, tokens}.
CURATED_CORPUS = Asset(name="curated_corpus", group="corpus")

# One partition per corpus snapshot. An event carries {line, artifact, hash, recipe}.
CANDIDATE_MODEL = Asset(name="candidate_model", group="model")
