# sextant on Debian 12, for planning and CPU ranks: docker build -t sextant . && docker run --rm -v "$PWD:/work" sextant plan --help
FROM debian:12 AS build
WORKDIR /src
# The packages of the build, which change less often than the sources.
COPY tools/dev/common.sh tools/dev/install_packages.sh tools/dev/
RUN tools/dev/install_packages.sh --packages
COPY . .
RUN tools/dev/make_packages.sh deb

FROM debian:12-slim
COPY --from=build /src/build/packages/*.deb /packages/
RUN apt-get update && apt-get install -y --no-install-recommends /packages/*.deb && rm -rf /packages /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["sextant"]
CMD ["--help"]
