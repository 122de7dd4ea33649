# A Debian machine with Debian's Slurm, Berth's packages and a simulated driver.
ARG MACHINE
FROM ${MACHINE}
RUN DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    gcc iproute2 libc6-dev munge procps python3 slurm-client slurm-wlm-basic-plugins slurmctld slurmd
COPY tests/__init__.py /usr/lib/berth-fake/tests/
COPY tests/fakes/ /usr/lib/berth-fake/tests/fakes/
RUN make -C /usr/lib/berth-fake/tests/fakes/nvml install \
 && cd /usr/lib/berth-fake/tests/fakes/mps && chmod 755 nvidia-cuda-mps-* fake-cuda-app \
 && ln -s "$PWD"/nvidia-cuda-mps-control "$PWD"/nvidia-cuda-mps-server "$PWD"/fake-cuda-app /usr/bin/
COPY packages/ /packages/
RUN dpkg -i /packages/*.deb && rm /usr/sbin/policy-rc.d && useradd --create-home --shell /bin/bash alice
COPY containers/vm/berth-guest.service /etc/systemd/system/
RUN systemctl enable berth-guest.service
