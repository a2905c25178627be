#!/usr/bin/env bash
# Fetches Hadoop's jars for the HDFS that tests run on (Apache-2.0, 65 MB), with Maven; does nothing if they are present.
#
#   hdfs.sh          fetch them, about 10 s, and print the directory
#   hdfs.sh --where  print where it is or would be
#
# Exit code 3: they are missing and cannot be fetched; the reason is printed. The tests that need them are then skipped.
set -euo pipefail

version=${HADOOP_VERSION:-3.4.3}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/penstock-tests/hadoop-$version
echo "$folder/jars"
if [ "${1:-}" = --where ] || [ -e "$folder/complete" ]; then exit 0; fi
for program in java mvn; do
  if ! command -v "$program" >/dev/null; then
    echo "hdfs.sh: there is no $program to fetch and run Hadoop with" >&2
    exit 3
  fi
done
mkdir -p "$folder"
# A second run waits for the first one, and finds its result.
exec 9>"$folder/lock"
flock 9
if [ -e "$folder/complete" ]; then exit 0; fi
{
  echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
  echo '<groupId>penstock</groupId><artifactId>hdfs-for-tests</artifactId><version>1</version><packaging>pom</packaging>'
  echo '<dependencies>'
  for artifact in hadoop-common hadoop-hdfs hadoop-hdfs-client; do
    echo "<dependency><groupId>org.apache.hadoop</groupId><artifactId>$artifact</artifactId>"
    echo "<version>$version</version></dependency>"
  done
  echo '</dependencies></project>'
} >"$folder/pom.xml"
if ! (cd "$folder" && timeout 600 mvn -B -q dependency:copy-dependencies -DoutputDirectory=jars -DincludeScope=runtime \
  >"$folder/log" 2>&1); then
  echo "hdfs.sh: Hadoop's jars cannot be fetched: $(grep -v '^$' "$folder/log" | head -n 3)" >&2
  exit 3
fi
touch "$folder/complete"
