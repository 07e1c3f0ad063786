# An image to train in, with what Shoal compiles at its first use compiled already.
#
#     docker build -t shoal .
#     docker run --rm shoal shoal simulate --example slow-worker
#
# Compiled code is for the kind of processor that builds the image: on another kind it is compiled
# again, and kept if the folder can be written. For CUDA, give another TORCH_INDEX.
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN apt-get update && apt-get install -y --no-install-recommends iproute2 && rm -rf /var/lib/apt/lists/*
COPY . /src/shoal
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" '/src/shoal[torch,metrics]'
ENV XDG_CACHE_HOME=/var/cache/shoal-job
RUN mkdir -p "$XDG_CACHE_HOME" && shoal warm-up && chmod -R a+rX "$XDG_CACHE_HOME"
WORKDIR /work
CMD ["shoal", "--help"]
