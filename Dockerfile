# A server for clients' audio on the CPU:
#
#   docker build -t streamer .
#   docker run --rm --init --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     -v streamer-cache:/cache -v ./token:/run/secrets/token:ro -p 127.0.0.1:8765:8765 streamer
#
# `token` holds a token of 16 characters or more, which user 10001 can read. The volume keeps compiled models and those
# that were fetched. A GPU or NPU needs its driver in the image, its device (--device /dev/dri or /dev/accel) and its group.

# --build-arg EXTRAS=[cluster] lets it be a gateway or a worker of many machines (contrib/compose-cluster.yaml); other
# extras are in docs/decisions.md, such as [tls] for self-signed certificates.

FROM python:3.13-slim AS build
ARG EXTRAS=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY streamer streamer
COPY docs docs
COPY contrib contrib
COPY models/nano.en models/nano.en
RUN python -m venv /opt/streamer \
    && /opt/streamer/bin/pip install --no-cache-dir --no-deps --requirement requirements/run.txt \
    && /opt/streamer/bin/pip install --no-cache-dir ".$EXTRAS"

FROM python:3.13-slim
COPY --from=build /opt/streamer /opt/streamer
RUN install -d -o 10001 -g 10001 -m 700 /cache
ENV PATH=/opt/streamer/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    XDG_DATA_HOME=/cache \
    STREAMER_INPUT_SOURCE=none \
    STREAMER_LOG_FORMAT=json \
    STREAMER_SERVER_HOST=0.0.0.0 \
    STREAMER_SERVER_PORT=8765 \
    STREAMER_SERVER_TOKEN_FILE=/run/secrets/token
USER 10001:10001
VOLUME /cache
EXPOSE 8765
# The first start compiles the model.
HEALTHCHECK --start-period=10m --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/healthz', timeout=4)"]
CMD ["streamer", "run", "--no-captions"]
