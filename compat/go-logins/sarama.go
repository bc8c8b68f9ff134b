package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// conversation is a login by xdg-go/scram, as sarama's examples have it.
type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return err
	}
	c.ClientConversation = client.NewConversation()
	return nil
}

// fixedToken is a provider of one bearer token.
type fixedToken struct{ token string }

func (f *fixedToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: f.token}, nil
}

func useSarama(o *order) (int, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = 20, 250*time.Millisecond
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	tlsSettings, err := tlsConfig(o)
	if err != nil {
		return 0, err
	}
	config.Net.TLS.Enable, config.Net.TLS.Config = tlsSettings != nil, tlsSettings
	if o.Mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(o.Mechanism)
		config.Net.SASL.User, config.Net.SASL.Password = o.User, o.Password
		config.Net.SASL.TokenProvider = &fixedToken{o.Token}
		hash := scram.HashGeneratorFcn(sha256.New)
		if o.Mechanism == sarama.SASLTypeSCRAMSHA512 {
			hash = sha512.New
		}
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
	}
	client, err := sarama.NewClient([]string{o.Bootstrap}, config)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return 0, err
	}
	if err := admin.CreateTopic(o.Topic, &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1}, false); err != nil {
		return 0, err
	}
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return 0, err
	}
	for number := range o.Count {
		message := &sarama.ProducerMessage{Topic: o.Topic, Value: sarama.StringEncoder(fmt.Sprint(number))}
		if _, _, err := producer.SendMessage(message); err != nil {
			return 0, err
		}
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return 0, err
	}
	partition, err := consumer.ConsumePartition(o.Topic, 0, sarama.OffsetOldest)
	if err != nil {
		return 0, err
	}
	defer partition.Close()
	deadline := time.After(patience)
	for read := 0; ; {
		select {
		case <-partition.Messages():
			if read++; read == o.Count {
				return read, nil
			}
		case <-deadline:
			return read, fmt.Errorf("only %d records were read", read)
		}
	}
}
