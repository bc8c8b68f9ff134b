// sarama by its public API, in roles that a test starts.
package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/IBM/sarama"
	. "klamm/ecosystem/roles"
)

func main() {
	Main(map[string]Role{"produce": produce, "transactions": Parallel(transactions), "member": member, "etl": etl})
}

// Idempotent as it is for transactions too: one request under way, everything acknowledged by all.
func producerConfig(s *Settings) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Net.MaxOpenRequests = 1
	config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = 60, 250*time.Millisecond
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Retry.Max, config.Producer.Retry.Backoff = 120, 250*time.Millisecond
	config.Producer.MaxMessageBytes = s.BatchBytes
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Return.Successes = true
	return config
}

func transactionalConfig(s *Settings) *sarama.Config {
	config := producerConfig(s)
	config.Producer.Transaction.ID = s.ID
	config.Producer.Transaction.Timeout = 20 * time.Second
	config.Producer.Transaction.Retry.Max, config.Producer.Transaction.Retry.Backoff = 120, 100*time.Millisecond
	return config
}

func groupConfig(s *Settings) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = 60, 250*time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 10 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Group.Rebalance.Retry.Max = 30
	config.Consumer.Return.Errors = true
	strategy := sarama.NewBalanceStrategyCooperativeSticky()
	if s.Balancer == "range" {
		strategy = sarama.NewBalanceStrategyRange()
	}
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
	return config
}

// produce writes numbered records, round robin, and reports each acknowledgement, until `count` or SIGTERM.
func produce(ctx context.Context, s *Settings) error {
	producer, err := sarama.NewAsyncProducer(s.Bootstrap, producerConfig(s))
	if err != nil {
		return err
	}
	// A producer that is closing refuses what it would have to send again: it is closed when nothing is under way.
	var underWay sync.WaitGroup
	go func() {
		for number := 0; number < s.Count && ctx.Err() == nil; number++ {
			underWay.Add(1)
			producer.Input() <- &sarama.ProducerMessage{
				Topic: s.Topic, Partition: int32(number % s.Partitions), Value: sarama.ByteEncoder(Value(number, s.Size)),
				Metadata: number,
			}
			time.Sleep(s.Pause)
		}
		underWay.Wait()
		producer.AsyncClose()
	}()
	failed := make(chan error, 1)
	go func() {
		var first error
		for failure := range producer.Errors() {
			underWay.Done()
			if first == nil {
				first = fmt.Errorf("record %v: %w", failure.Msg.Metadata, failure.Err)
			}
		}
		failed <- first
	}()
	for sent := range producer.Successes() {
		underWay.Done()
		Report(Event{"event": "acknowledged", "number": sent.Metadata, "partition": sent.Partition, "offset": sent.Offset})
	}
	return <-failed
}

// transactions begins each transaction as soon as the one before has ended.
func transactions(_ context.Context, s *Settings) error {
	producer, err := sarama.NewSyncProducer(s.Bootstrap, transactionalConfig(s))
	if err != nil {
		return err
	}
	defer producer.Close()
	for number := 0; number < s.Count; number++ {
		if err := producer.BeginTxn(); err != nil {
			return fmt.Errorf("%s, transaction %d begins: %w", s.ID, number, err)
		}
		messages := []*sarama.ProducerMessage{}
		for index := range s.Records {
			text := fmt.Sprintf("%s/%d/%d", s.ID, number, index)
			messages = append(messages, &sarama.ProducerMessage{
				Topic: s.Topic, Partition: int32(index % s.Partitions), Value: sarama.StringEncoder(text),
			})
		}
		if err := producer.SendMessages(messages); err != nil {
			return fmt.Errorf("%s, transaction %d sends: %w", s.ID, number, err)
		}
		end := producer.CommitTxn
		if !Committed(number) {
			end = producer.AbortTxn
		}
		if err := end(); err != nil {
			return fmt.Errorf("%s, transaction %d ends: %w", s.ID, number, err)
		}
		Report(Event{"event": "ended", "id": s.ID, "number": number, "committed": Committed(number)})
	}
	return nil
}

// A handler of a group's sessions: reports what is had, and gives each record to what `open` made for its claim.
type handler struct {
	settings *Settings
	open     func(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim) (claimReader, error)
}

type claimReader interface {
	read(*sarama.ConsumerMessage) error
	close() error
}

func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	Report(Event{"event": "assigned", "partitions": session.Claims()[h.settings.Topic]})
	return nil
}

func (h *handler) Cleanup(session sarama.ConsumerGroupSession) error {
	Report(Event{"event": "revoked", "partitions": session.Claims()[h.settings.Topic]})
	return nil
}

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	reader, err := h.open(session, claim)
	if err != nil {
		return err
	}
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return reader.close()
			}
			if err := reader.read(message); err != nil {
				return errors.Join(err, reader.close())
			}
		case <-session.Context().Done():
			return reader.close()
		}
	}
}

func follow(ctx context.Context, s *Settings, config *sarama.Config, h *handler) error {
	group, err := sarama.NewConsumerGroup(s.Bootstrap, s.Group, config)
	if err != nil {
		return err
	}
	defer group.Close()
	go func() {
		for failure := range group.Errors() {
			Report(Event{"event": "problem", "error": failure.Error()})
		}
	}()
	for ctx.Err() == nil {
		// A session that a dead coordinator or a rebalance ends is followed by another.
		err := group.Consume(ctx, []string{s.Topic}, h)
		if errors.Is(err, sarama.ErrClosedConsumerGroup) {
			return err
		}
		if err != nil {
			Report(Event{"event": "session ended", "error": err.Error()})
			time.Sleep(250 * time.Millisecond)
		}
	}
	return nil
}

// member reads as one of a group, reports each record and commits at times; until SIGTERM.
func member(ctx context.Context, s *Settings) error {
	open := func(session sarama.ConsumerGroupSession, _ sarama.ConsumerGroupClaim) (claimReader, error) {
		return &reporter{session}, nil
	}
	return follow(ctx, s, groupConfig(s), &handler{s, open})
}

type reporter struct {
	session sarama.ConsumerGroupSession
}

func (r *reporter) read(m *sarama.ConsumerMessage) error {
	ReportRecord(m.Partition, m.Offset, m.Value)
	r.session.MarkMessage(m, "")
	if (m.Offset+1)%20 == 0 {
		r.session.Commit()
	}
	return nil
}

func (r *reporter) close() error {
	r.session.Commit()
	return nil
}

// etl copies a topic into another, each record and its offset in a transaction; until SIGTERM.
//
// sarama sends no generation with offsets, so each partition has a transactional id of its own: the next owner fences
// the one before.
func etl(ctx context.Context, s *Settings) error {
	config := groupConfig(s)
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	open := func(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) (claimReader, error) {
		own := *s
		own.ID = fmt.Sprintf("%s-%d", s.ID, claim.Partition())
		producer, err := sarama.NewSyncProducer(s.Bootstrap, transactionalConfig(&own))
		return &copier{&own, producer}, err
	}
	return follow(ctx, s, config, &handler{s, open})
}

type copier struct {
	settings *Settings
	producer sarama.SyncProducer
}

func (c *copier) read(m *sarama.ConsumerMessage) error {
	if err := c.producer.BeginTxn(); err != nil {
		return err
	}
	copied := &sarama.ProducerMessage{Topic: c.settings.Target, Partition: m.Partition, Value: sarama.ByteEncoder(m.Value)}
	_, _, err := c.producer.SendMessage(copied)
	if err == nil {
		err = c.producer.AddMessageToTxn(m, c.settings.Group, nil)
	}
	if err == nil {
		err = c.producer.CommitTxn()
	}
	Report(Event{"event": "ended", "id": c.settings.ID, "committed": err == nil, "records": 1})
	return err
}

func (c *copier) close() error {
	return c.producer.Close()
}
