"""Write `pulsar.lock`; Ivy cannot, because Pulsar's versions come from imported dependency management.

`python -m soak.lab.jars.pulsar_lock --pom > pom.xml` writes a project for Maven, `mvn
dependency:copy-dependencies -Dmdep.useRepositoryLayout=true -DoutputDirectory=JARS` fetches it, and
`python -m soak.lab.jars.pulsar_lock JARS > soak/lab/jars/pulsar.lock` pins the result.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from soak.lab.jars.lock import Artifact, render_lock

VERSION = "4.2.4"
BOOKKEEPER_VERSION = "4.17.3"

_COMMENT = f"""Pulsar {VERSION}: jars by coordinate and sha256. Written as
soak/lab/jars/pulsar_lock.py describes"""

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>pulsar-lab</artifactId><version>1</version>
  <packaging>pom</packaging>
  <!-- The versions of the release; without them, versions of log4j and RocksDB mix. -->
  <dependencyManagement><dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar</artifactId>
      <version>{VERSION}</version><type>pom</type><scope>import</scope></dependency>
  </dependencies></dependencyManagement>
  <dependencies>
    <dependency><groupId>org.apache.pulsar</groupId><artifactId>pulsar-broker</artifactId>
      <version>{VERSION}</version><exclusions><exclusion>
        <groupId>org.apache.pulsar</groupId><artifactId>jetcd-core-shaded</artifactId>
      </exclusion></exclusions></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-core</artifactId></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j2-impl</artifactId><scope>runtime</scope></dependency>
    <!-- The bookie's metrics page. -->
    <dependency><groupId>org.apache.bookkeeper.stats</groupId>
      <artifactId>prometheus-metrics-provider</artifactId><version>{BOOKKEEPER_VERSION}</version>
      <exclusions><exclusion>
        <groupId>org.eclipse.jetty</groupId><artifactId>*</artifactId>
      </exclusion></exclusions></dependency>
    <dependency><groupId>org.apache.bookkeeper.http</groupId>
      <artifactId>vertx-http-server</artifactId><version>{BOOKKEEPER_VERSION}</version></dependency>
  </dependencies>
</project>
"""


def pinned(repository: Path) -> list[Artifact]:
    """Return every jar below a folder in Maven's repository layout, with its checksum."""
    return [_artifact(jar, repository) for jar in sorted(repository.rglob("*.jar"))]


def _artifact(jar: Path, repository: Path) -> Artifact:
    """Read GROUP/NAME/VERSION/NAME-VERSION[-CLASSIFIER].jar, where a group's dots are slashes."""
    *group, name, version, _ = jar.relative_to(repository).parts
    classifier = jar.stem.removeprefix(f"{name}-{version}").removeprefix("-")
    digest = hashlib.sha256(jar.read_bytes()).hexdigest()
    return Artifact(".".join(group), name, version, classifier, digest)


def _main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit(f"usage: {__doc__}")
    text = _POM if arguments[0] == "--pom" else render_lock(pinned(Path(arguments[0])), _COMMENT)
    sys.stdout.write(text)


if __name__ == "__main__":
    _main(sys.argv[1:])
