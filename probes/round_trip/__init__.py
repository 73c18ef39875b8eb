"""The round trip between this host and the brokers, for a request that costs a broker no work.

Source:   ApiVersions requests, which a broker answers from memory, over `connections` TCP connections of
          our own to each bootstrap server, all at the same instants. `broker_round_trip_seconds` is the
          shortest of a second: a longer network path raises it, a broker that is busy at times does not.
          `broker_lone_delay_seconds` is the longest delay of one connection's answer after the first answer
          of the same instant: a broker that stalls delays all connections, a lost packet only one.
          `broker_stall_seconds` is the longest wait for the first answer of an instant: a broker that stands
          still for a part of the second raises it.
Overhead: 40 requests of 30 bytes a second and server; 0.5 % of a core here, about as much at the broker.
Caveats:  Only Kafka's protocol, and of its logins PLAIN and SCRAM. With TLS the time of encryption counts. A
          request without an answer has no value in its second; after `timeout` its connection is opened
          again. A server that refuses is tried ever more rarely, once a second in the end, and one that
          refuses the login once a minute. While requests always wait in a broker's queue, even the shortest
          answer is late, as on a longer path. Behind a load balancer connections may end at several brokers:
          a stall of one of them is then a lone delay.

Open `probe` first; it opens its connections by `connection`.
"""

from probes.round_trip.probe import Config, build, check_settings, preflight

__all__ = ["Config", "build", "check_settings", "preflight"]
