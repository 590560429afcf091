module github.com/outbox-relay/outbox-relay/bench

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/outbox-relay/outbox-relay v0.0.0
	github.com/rabbitmq/amqp091-go v1.16.0
	golang.org/x/sync v0.25.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	golang.org/x/text v0.42.0 // indirect
)

replace github.com/outbox-relay/outbox-relay => ../
