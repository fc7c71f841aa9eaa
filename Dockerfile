# Two images: `cardinal` (the commands) and `anvil` (a development node for docker-compose.yml).

FROM python:3.11-bookworm AS wheels
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY cardinal cardinal
COPY connectors connectors
COPY spark spark
# Some dependencies may have no wheel for this machine: they are built here, where a compiler is.
RUN pip wheel --no-cache-dir --constraint constraints.txt --wheel-dir /wheels '.[evm,server]'

FROM python:3.11-slim-bookworm AS cardinal
COPY --from=wheels /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'cardinal-streams[evm,server]' && rm -r /wheels \
    && useradd --create-home cardinal
USER cardinal
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["cardinal"]

FROM node:22-bookworm-slim AS anvil
RUN npm install --global --no-audit --no-fund @foundry-rs/anvil@1.7.1 \
    && mkdir /state && chown node:node /state
USER node
ENTRYPOINT ["anvil"]
