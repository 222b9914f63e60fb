# docker build --tag zoo .                                                    CPU
# docker build --tag zoo:cuda --build-arg TORCH_BACKEND=cu130 .               CUDA 13.0, or another backend that uv knows
# docker build --tag zoo --build-arg EXTRAS=ui,metrics .                      with extras
# docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" zoo fit hifigan/smoke
# docker run --rm --gpus all --shm-size 8g --volume "$PWD:/work" zoo:cuda fit hifigan/base
# Not built here: checked by hadolint. Torch's wheels bring CUDA; the host has the driver and its container toolkit.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS tools
# a C compiler for PESQ
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir "uv>=0.8,<1"

# What .devcontainer builds: an environment is made in the checkout there.
FROM tools AS dev
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends chromium git munge slurm-wlm \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 dev
USER 1000
WORKDIR /workspace

FROM tools AS build
WORKDIR /source
COPY . .
ARG TORCH_BACKEND=cpu
ARG EXTRAS=""
RUN uv venv /opt/zoo \
    && uv pip install --no-cache --python /opt/zoo --torch-backend "${TORCH_BACKEND}" ".${EXTRAS:+[${EXTRAS}]}"

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /opt/zoo /opt/zoo
# any user may run it (--user): what libraries keep lies where all may write
ENV PATH=/opt/zoo/bin:$PATH HOME=/home/zoo PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --create-home --uid 1000 zoo \
    && chmod 1777 /home/zoo \
    && install --directory --mode=1777 /work
USER 1000
WORKDIR /work
ENTRYPOINT ["zoo"]
CMD ["--help"]
