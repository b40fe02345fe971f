# A server for clients' audio:
#
#   docker build -t streamer .                              # for CPUs
#   docker build -t streamer --build-arg DRIVER=intel .     # for Intel's GPUs, and NPUs with NPU_DRIVER below
#   docker run --rm --init --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     -v streamer-cache:/cache -v ./token:/run/secrets/token:ro -p 127.0.0.1:8765:8765 streamer
#
# `token` holds a token of 16 characters or more, which user 10001 can read. The volume keeps models, which the first start
# fetches, and compiled graphs. GPU and NPU: --device /dev/dri --device /dev/accel and their group:
# --group-add "$(stat -c %g /dev/dri/renderD128)". contrib/compose.yaml has all of it.

# --build-arg EXTRAS=[cluster] lets it be a gateway or a worker of many machines (contrib/compose-cluster.yaml); other
# extras are in docs/decisions.md, such as [tls] for self-signed certificates.

# cpu or intel
ARG DRIVER=cpu

FROM python:3.13-slim-trixie AS build
ARG EXTRAS=""
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY requirements requirements
COPY streamer streamer
COPY docs docs
COPY contrib contrib
COPY models/nano.en models/nano.en
COPY models/adapters models/adapters
RUN python -m venv /opt/streamer \
    && /opt/streamer/bin/pip install --no-cache-dir --no-deps --requirement requirements/run.txt \
    && /opt/streamer/bin/pip install --no-cache-dir ".$EXTRAS"

FROM python:3.13-slim-trixie AS cpu

FROM python:3.13-slim-trixie AS intel
# The GPU's OpenCL and Level Zero: Debian 13 itself has none, the next release has; of that, they alone are taken, and
# the C and C++ libraries that they need.
RUN printf 'Types: deb\nURIs: http://deb.debian.org/debian\nSuites: forky\nComponents: main\nSigned-By: %s\n' \
        /usr/share/keyrings/debian-archive-keyring.gpg > /etc/apt/sources.list.d/forky.sources \
    && printf 'Package: *\nPin: release n=forky\nPin-Priority: 100\n' > /etc/apt/preferences.d/forky \
    && apt-get update \
    && apt-get install -y --no-install-recommends --target-release forky intel-opencl-icd libze-intel-gpu1 libze1 \
    && rm -rf /var/lib/apt/lists/*
# The NPU's user space, which Debian lacks: the address of a release's archive for Ubuntu 24.04, at
# https://github.com/intel/linux-npu-driver/releases. Its firmware belongs to the host.
ARG NPU_DRIVER=""
RUN if [ -n "$NPU_DRIVER" ]; then \
        python -c 'import sys, tarfile, urllib.request as r; \
            tarfile.open(fileobj=r.urlopen(sys.argv[1]), mode="r|gz").extractall("/tmp/npu", filter="data")' "$NPU_DRIVER" \
        && packages=$(find /tmp/npu -name 'intel-level-zero-npu_*.deb' -o -name 'intel-driver-compiler-npu_*.deb') \
        && test -n "$packages" \
        && apt-get update \
        && apt-get install -y --no-install-recommends --target-release forky $packages \
        && rm -rf /tmp/npu /var/lib/apt/lists/*; \
    fi

FROM ${DRIVER}
COPY --from=build /opt/streamer /opt/streamer
COPY --from=build /source/contrib/healthcheck.py /opt/streamer/bin/healthcheck
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
# The first start fetches and compiles the model.
HEALTHCHECK --start-period=10m --interval=30s --timeout=5s CMD ["python", "/opt/streamer/bin/healthcheck"]
CMD ["streamer", "run", "--no-captions"]
