# Gofer in a container: `docker build -t gofer .`, then see compose.yaml and docs/deploying.md.
# The shell of the agent needs more than a container gets by default; compose.yaml says what and why.
# To pin the base image give its digest: --build-arg PYTHON=3.11-slim-bookworm@sha256:… (docs/deploying.md).
ARG PYTHON=3.11-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY requirements.lock requirements-build.lock ./
RUN python -m venv /opt/gofer \
 && /opt/gofer/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.lock \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY docs docs
COPY platform platform
COPY integrations integrations
COPY sandbox sandbox
COPY rehearsal rehearsal
COPY supervisor supervisor
RUN /opt/build/bin/python -m hatchling build -t wheel -d /opt/dist \
 && /opt/gofer/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps /opt/dist/*.whl \
 && /opt/gofer/bin/python -m compileall -q /opt/gofer/lib

FROM python:${PYTHON}
# What the agent's shell can use is what this image has: add tools of your own here.
# Debian keeps one version of a package at a time, so none is pinned.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bash ca-certificates curl git procps \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 gofer \
 && useradd --uid 10001 --gid gofer --no-create-home --home-dir /data --shell /usr/sbin/nologin gofer \
 && install -d -m 0700 -o gofer -g gofer /data
COPY --from=build /opt/gofer /opt/gofer
ENV PATH=/opt/gofer/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    GOFER_DATA_DIR=/data \
    GOFER_HOST=0.0.0.0 \
    GOFER_KEEP_SHELLS=false
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8765
STOPSIGNAL SIGTERM
# Asks the running server through its socket, whatever its role; never opens the store itself. A small
# computer takes its time to start either of them.
HEALTHCHECK --interval=30s --timeout=30s --start-period=2m --retries=3 CMD ["gofer", "status", "--running"]
# The supervisor reaps the orphans that shells leave behind, and ends everything in good order on SIGTERM.
ENTRYPOINT ["gofer"]
CMD ["up"]
