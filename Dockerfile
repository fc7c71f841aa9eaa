# Images: `cardinal` (the commands), `lake` (the same with Spark) and `anvil` (a development node), for
# docker-compose.yml.

FROM python:3.11-bookworm AS wheels
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY cardinal cardinal
COPY connectors connectors
COPY devkit devkit
COPY spark spark
# Some dependencies may have no wheel for this machine: they are built here, where a compiler is.
RUN pip wheel --no-cache-dir --constraint constraints.txt --wheel-dir /wheels '.[evm,ingest,server]'

FROM wheels AS lake-wheels
RUN pip wheel --no-cache-dir --constraint constraints.txt --wheel-dir /wheels '.[evm,local,server,spark]'

FROM python:3.11-slim-bookworm AS base
RUN useradd --create-home cardinal && mkdir /lake /cluster /data && chown cardinal:cardinal /lake /cluster /data
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["cardinal"]
# Of commands that run with --metrics on this port: docker-compose.yml does, and disables it for the others.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9090/healthz', timeout=5)"]

FROM base AS cardinal
COPY --from=wheels /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'cardinal-streams[evm,ingest,server]' && rm -r /wheels
USER cardinal

FROM base AS lake
COPY --from=lake-wheels /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels 'cardinal-streams[evm,local,server,spark]' \
    && rm -r /wheels
USER cardinal

FROM node:22-bookworm-slim AS anvil
RUN npm install --global --no-audit --no-fund @foundry-rs/anvil@1.7.1 \
    && mkdir /state && chown node:node /state
USER node
ENTRYPOINT ["anvil"]
