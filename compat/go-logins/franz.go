package main

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func scramAuth(o *order) scram.Auth {
	return scram.Auth{User: o.User, Pass: o.Password, IsToken: o.IsDelegationToken}
}

func useFranz(o *order) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := []kgo.Opt{
		kgo.SeedBrokers(o.Bootstrap),
		kgo.ConsumeTopics(o.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RetryTimeout(patience),
	}
	config, err := tlsConfig(o)
	if err != nil {
		return 0, err
	}
	if config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	switch o.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: o.User, Pass: o.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(scramAuth(o).AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(scramAuth(o).AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: o.Token}.AsMechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, o.Topic); err != nil {
		return 0, err
	}
	for number := range o.Count {
		record := &kgo.Record{Topic: o.Topic, Value: []byte(fmt.Sprint(number))}
		if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
			return 0, err
		}
	}
	read := 0
	for read < o.Count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return read, err
		}
		read += fetches.NumRecords()
	}
	return read, nil
}
