"""Examples of every command and of every group of commands, for the end of its help."""

from __future__ import annotations

_ID = "00000000000000000000000000000001"

#: By the words after ``penstock``. Each entry is a line of a shell.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "standalone": (
        "penstock standalone",
        "penstock standalone --data-dir /var/lib/penstock --segment-stores 4 --metrics-port 9600",
        "penstock standalone --data-dir /var/lib/penstock --tier2 s3://bucket/prefix",
        "penstock standalone --data-dir /var/lib/penstock --host 0.0.0.0 --advertise store1.example.org --secure",
    ),
    "ready": (
        "penstock ready",
        "penstock ready --uri tcp://store1.example.org:9090 --timeout 1m",
        "penstock ready --store localhost:6000",
    ),
    "controller": (
        "penstock controller --zookeeper zk1:2181,zk2:2181,zk3:2181/penstock --host 0.0.0.0 --insecure",
        "penstock controller --zookeeper zk1:2181/penstock --listeners 'in=10.0.0.1:90,out=10.0.0.1:91@example.org:91' "
        "--insecure",
    ),
    "segment-store": (
        "penstock segment-store --zookeeper zk1:2181,zk2:2181,zk3:2181/penstock --host 0.0.0.0 --insecure",
        "penstock segment-store --zookeeper zk1:2181/penstock --processes 4 --zone east --advertise 10.0.0.7",
    ),
    "cluster": (
        "penstock cluster init --zookeeper zk1:2181/penstock --containers 16 --log s3://bucket/log --tier2 s3://bucket/data",
        "penstock cluster status --zookeeper zk1:2181/penstock",
    ),
    "cluster init": (
        "penstock cluster init --zookeeper zk1:2181/penstock --containers 16 --log s3://bucket/log --tier2 s3://bucket/data",
        "penstock cluster init --zookeeper zk1:2181/penstock --log s3://bucket/log --tier2 s3://bucket/data --adopt",
    ),
    "cluster status": ("penstock cluster status --zookeeper zk1:2181/penstock",),
    "cluster stores": ("penstock cluster stores --zookeeper zk1:2181/penstock --json",),
    "cluster containers": ("penstock cluster containers --zookeeper zk1:2181/penstock",),
    "cluster drain": (
        "penstock cluster drain store-2 --zookeeper zk1:2181/penstock --dry-run",
        "penstock cluster drain store-2 --zookeeper zk1:2181/penstock",
    ),
    "cluster undrain": ("penstock cluster undrain store-2 --zookeeper zk1:2181/penstock",),
    "cluster move": ("penstock cluster move 7 store-2 --zookeeper zk1:2181/penstock",),
    "cluster balance": ("penstock cluster balance --zookeeper zk1:2181/penstock --dry-run",),
    "cluster log": ("penstock cluster log list --zookeeper zk1:2181/penstock",),
    "cluster log list": ("penstock cluster log list --zookeeper zk1:2181/penstock --json",),
    "cluster log enable": ("penstock cluster log enable 7 --zookeeper zk1:2181/penstock",),
    "cluster log disable": ("penstock cluster log disable 7 --zookeeper zk1:2181/penstock",),
    "cluster log rebuild": ("penstock cluster log rebuild --zookeeper zk1:2181/penstock --dry-run",),
    "cluster log salvage": ("penstock cluster log salvage 7 --zookeeper zk1:2181/penstock --dry-run",),
    "cluster demo": (
        "penstock cluster demo",
        "penstock cluster demo --script 'kill 2; served; start 2; served; drain 1; served'",
        "penstock cluster demo --bucket s3://bucket/demo --json --script 'stop 2; served; cont 2; wait 10'",
    ),
    "cluster sweep": ("penstock cluster sweep --zookeeper zk1:2181/penstock --dry-run",),
    "store-child": ("penstock standalone --segment-stores 4",),
    "version": ("penstock version", "penstock version --json"),
    "quickstart": ("penstock quickstart --limit 20000", "penstock quickstart --data-dir flights --keep"),
    "write": (
        "echo hello | penstock write shop/orders",
        "penstock write shop/orders --key-field customer < orders.json",
        "penstock write shop/orders --transaction --rate 1000 < orders.json",
    ),
    "read": (
        "penstock read shop/orders",
        "penstock read shop/orders --from -1h --json",
        "penstock read shop/orders --from '2026-11-22 10:30' --until '2026-11-22 11:00' --count 100",
    ),
    "tail": ("penstock tail shop/orders", "penstock tail shop/orders --from -10m --key customer-42"),
    "export": (
        "penstock export shop/orders --to parquet --directory orders --once",
        "penstock export shop/orders --to iceberg --directory lake --table shop.orders --value json "
        "--schema 'order long, customer string'",
    ),
    "replay": (
        "penstock replay shop/orders test/orders --from -1d --rate 5000",
        "penstock replay shop/orders test/orders --key-field customer",
    ),
    "backfill": ("penstock backfill shop/orders orders/ --key-column customer",),
    "verify": ("penstock verify", "penstock verify shop/orders --json"),
    "top": ("penstock top", "penstock top --count 1 --json"),
    "stream": (
        "penstock stream create shop/orders --segments 4",
        "penstock stream list shop",
        "penstock stream describe shop/orders",
    ),
    "stream list": ("penstock stream list", "penstock stream list shop --tag retail"),
    "stream create": (
        "penstock stream create shop/orders",
        "penstock stream create shop/orders --segments 4 --keep-time 7d --exist-ok",
        "penstock stream create shop/orders --event-rate 1000 --keep-bytes 100GB --tag retail",
    ),
    "stream update": (
        "penstock stream update shop/orders --keep-time 30d",
        "penstock stream update shop/orders --segments 8",
    ),
    "stream scale": (
        "penstock stream scale shop/orders --split 0 --into 4",
        "penstock stream scale shop/orders --merge 1 --merge 2",
    ),
    "stream history": ("penstock stream history shop/orders", "penstock stream history shop/orders --before 40"),
    "stream watermark": ("penstock stream watermark shop/orders",),
    "stream cut": (
        "penstock stream cut shop/orders --at latest",
        "penstock stream cut shop/orders --at '2026-11-22 10:30' > cut.json",
    ),
    "stream describe": (
        "penstock stream describe shop/orders",
        "penstock stream describe shop/orders --svg segments.svg",
    ),
    "stream seal": ("penstock stream seal shop/orders",),
    "stream truncate": (
        "penstock stream truncate shop/orders --at -7d",
        "penstock stream truncate shop/orders --at @cut.json --yes",
    ),
    "stream delete": ("penstock stream delete shop/orders", "penstock stream delete shop/orders --yes"),
    "scope": ("penstock scope create shop", "penstock scope list"),
    "scope list": ("penstock scope list",),
    "scope create": ("penstock scope create shop",),
    "scope describe": ("penstock scope describe shop",),
    "scope delete": ("penstock scope delete shop", "penstock scope delete shop --recursive --yes"),
    "group": (
        "penstock group create shop/audit shop/orders",
        "penstock group lag shop/audit",
        "penstock group reset shop/audit --to -1h",
    ),
    "group list": ("penstock group list", "penstock group list shop"),
    "group create": (
        "penstock group create shop/audit shop/orders",
        "penstock group create shop/audit 'shop/orders-*' --from latest --retention automatic",
    ),
    "group describe": ("penstock group describe shop/audit",),
    "group lag": ("penstock group lag shop/audit", "penstock group lag shop/audit --json"),
    "group reset": (
        "penstock group reset shop/audit --to latest",
        "penstock group reset shop/audit --to '2026-11-22 10:30' --dry-run",
    ),
    "group remove-reader": ("penstock group remove-reader shop/audit worker-3",),
    "group update": ("penstock group update shop/audit --add shop/returns --remove shop/orders",),
    "group acknowledge": ("penstock group acknowledge shop/audit @cut.json",),
    "group delete": ("penstock group delete shop/audit",),
    "retention": ("penstock retention explain shop/orders",),
    "retention explain": (
        "penstock retention explain shop/orders",
        "penstock retention explain shop/orders --svg retention.svg",
    ),
    "transaction": (
        "penstock transaction create shop/orders",
        f"penstock write shop/orders --transaction-id {_ID} < orders.json",
        f"penstock transaction commit shop/orders {_ID}",
    ),
    "transaction list": ("penstock transaction list shop/orders --open",),
    "transaction create": ("penstock transaction create shop/orders --lease 10m",),
    "transaction update": (f"penstock transaction update shop/orders {_ID} --lease 10m",),
    "transaction describe": (f"penstock transaction describe shop/orders {_ID}",),
    "transaction prepare": (f"penstock transaction prepare shop/orders {_ID} --limit 1h",),
    "transaction commit": (f"penstock transaction commit shop/orders {_ID}",),
    "transaction abort": (f"penstock transaction abort shop/orders {_ID}",),
    "table": (
        "penstock table create shop/prices",
        "penstock table put shop/prices apple 250",
        "penstock table scan shop/prices",
    ),
    "table list": ("penstock table list", "penstock table list shop"),
    "table create": (
        "penstock table create shop/prices",
        "penstock table create shop/prices --key-length 16 --second-length 8 --partitions 4",
    ),
    "table describe": ("penstock table describe shop/prices",),
    "table delete": ("penstock table delete shop/prices",),
    "table get": ("penstock table get shop/prices apple",),
    "table put": (
        "penstock table put shop/prices apple 250",
        "penstock table put shop/prices apple 260 --version 7",
        "penstock table put shop/prices apple < price.txt",
    ),
    "table remove": ("penstock table remove shop/prices apple",),
    "table scan": ("penstock table scan shop/prices", "penstock table scan shop/prices --prefix ap --count 10"),
    "bench": ("penstock bench write", "penstock bench end-to-end --rate 10000"),
    "bench write": ("penstock bench write", "penstock bench write --segments 4 --size 1000 --seconds 30"),
    "bench read": ("penstock bench read", "penstock bench read --stream shop/orders"),
    "bench end-to-end": ("penstock bench end-to-end --rate 10000 --seconds 30",),
    "jars": ("penstock jars --to /opt/bookkeeper-jars",),
    "doctor": (
        "penstock doctor",
        "penstock doctor --data-dir /var/lib/penstock --config penstock.toml",
        "penstock doctor --uri tcp://store1.example.org:9090 --health store1.example.org:9600 --json",
    ),
    "settings": ("penstock settings show --changed",),
    "settings show": (
        "penstock settings show",
        "penstock settings show --config penstock.toml --changed",
        "penstock settings show segment_store.cache --json",
    ),
    "web": ("penstock web", "penstock web --uri tls://streams.example.com:9090 --port 9091"),
    "console": ("penstock console", "penstock console --uri tls://streams.example.com:9090 --no-browser"),
    "user": (
        "penstock user add ann --grant 'prn::/scope:shop/stream:orders,READ'",
        "penstock user list",
    ),
    "security": ("penstock security show", "penstock security check --data-dir store"),
    "security check": ("penstock security check --data-dir store",),
    "security make": ("penstock security make --host store-1 --host store-2 --host ctl-1 --data-dir store",),
    "security rotate-key": ("penstock security rotate-key --data-dir store",),
    "security show": ("penstock security show --user ann --address tls://streams.example.com:9090",),
    "user add": (
        "penstock user add ann --grant 'prn::/scope:shop/stream:orders,READ'",
        "penstock user add loader --grant 'prn::/scope:shop/*,READ_UPDATE' --password-file loader.password",
    ),
    "user passwd": ("penstock user passwd ann",),
    "user remove": ("penstock user remove ann",),
    "user grant": ("penstock user grant ann 'prn::/scope:shop/stream:orders,READ_UPDATE'",),
    "user revoke": ("penstock user revoke ann 'prn::/scope:shop/stream:orders'",),
    "user list": ("penstock user list", "penstock user list --data-dir /var/lib/penstock --json"),
    "user check": ("penstock user check",),
    "log": ("penstock log list --data-dir /var/lib/penstock",),
    "log list": ("penstock log list --data-dir /var/lib/penstock", "penstock log list --log s3://bucket/log"),
    "log enable": ("penstock log enable 2 --data-dir /var/lib/penstock",),
    "log disable": ("penstock log disable 2 --data-dir /var/lib/penstock",),
    "log salvage": (
        "penstock log salvage 2 --data-dir /var/lib/penstock --dry-run",
        "penstock log salvage 2 --data-dir /var/lib/penstock",
        "penstock log salvage 2 --log s3://bucket/log --tier2 s3://bucket/data",
    ),
    "log sweep": (
        "penstock log sweep --log s3://bucket/log --dry-run",
        "penstock log sweep --log s3://bucket/log",
    ),
    "storage": (
        "penstock storage check --data-dir /var/lib/penstock",
        "penstock storage probe --tier2 s3://bucket/prefix",
    ),
    "storage check": (
        "penstock storage check --data-dir /var/lib/penstock",
        "penstock storage check --data-dir /var/lib/penstock --tier2 s3://bucket/prefix --lengths-only",
    ),
    "storage recover": ("penstock storage recover --tier2 s3://bucket/prefix --directory /var/lib/penstock-new",),
    "storage probe": (
        "penstock storage probe --tier2 s3://bucket/prefix",
        "penstock storage probe --log s3://bucket/log",
    ),
    "storage survey": ("penstock storage survey --tier2 /mnt/pravega",),
    "storage import": (
        "penstock storage import --data-dir /var/lib/penstock --tier2 /mnt/pravega",
        "penstock storage import shop/orders --as shop/old-orders --data-dir /var/lib/penstock --tier2 /mnt/pravega",
    ),
    "storage export": ("penstock storage export shop/orders --data-dir /var/lib/penstock",),
    "storage backup": (
        "penstock storage backup /backup/2026-11-22 --data-dir /var/lib/penstock",
        "penstock storage backup /backup/2026-11-22 --data-dir /var/lib/penstock --admin localhost:9999",
    ),
    "storage restore": ("penstock storage restore /backup/2026-11-22 --directory /var/lib/penstock-new",),
}


def epilog_of(command: str) -> str:
    """Return the end of the help of a command, such as ``stream create``. Raises `KeyError` for an unknown one."""
    lines = "".join(f"  {line}\n" for line in EXAMPLES[command])
    # The control character keeps the lines as they are.
    return f"\b\nExamples:\n{lines}"
