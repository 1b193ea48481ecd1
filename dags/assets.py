"""Every asset, named once. DAGs announce and await these, never each other."""

from airflow.sdk import Asset

# One partition per snapshot date. An event carries {corpus, hash, snapshot, read, kept, tokens}.
CURATED_CORPUS = Asset(name="curated_corpus", group="corpus")

# One partition per corpus snapshot. An event carries {line, artifact, hash, recipe}.
CANDIDATE_MODEL = Asset(name="candidate_model", group="model")

# One partition per domain: new records have landed in its folder.
DOMAIN_DATA = Asset(name="domain_data", group="corpus")

# One partition per model line.
RELEASED_MODEL = Asset(name="released_model", group="model")
