// franz-go by its public API, in roles that a test starts.
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	. "klamm/ecosystem/roles"
)

func main() {
	Main(map[string]Role{"produce": produce, "transactions": Parallel(transactions), "member": member, "etl": etl})
}

func options(s *Settings) []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(s.Bootstrap...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedBytes(64 << 20), kgo.ProducerBatchMaxBytes(int32(s.BatchBytes)),
		kgo.FetchMaxWait(200 * time.Millisecond), kgo.MetadataMinAge(250 * time.Millisecond),
	}
}

func membership(s *Settings) []kgo.Opt {
	balancer := kgo.CooperativeStickyBalancer()
	if s.Balancer == "range" {
		balancer = kgo.RangeBalancer()
	}
	sharing := []kgo.Opt{kgo.Balancers(balancer)}
	if s.Balancer == "server" { // the consumer protocol; the topic is a pattern that the broker resolves
		sharing = []kgo.Opt{kgo.ServerSideBalancer(), kgo.ConsumeRegex()}
	}
	return append(sharing,
		kgo.ConsumerGroup(s.Group), kgo.ConsumeTopics(s.Topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(listener("assigned")), kgo.OnPartitionsRevoked(listener("revoked")),
		kgo.OnPartitionsLost(listener("lost")),
	)
}

func listener(event string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
		for _, partitions := range changed {
			Report(Event{"event": event, "partitions": partitions})
		}
	}
}

// produce writes numbered records, round robin, and reports each acknowledgement, until `count` or SIGTERM.
func produce(ctx context.Context, s *Settings) error {
	client, err := kgo.NewClient(options(s)...)
	if err != nil {
		return err
	}
	defer client.Close()
	var first kgo.FirstErrPromise
	for number := 0; number < s.Count && ctx.Err() == nil; number++ {
		record := &kgo.Record{Topic: s.Topic, Partition: int32(number % s.Partitions), Value: Value(number, s.Size)}
		promise := first.Promise()
		client.Produce(context.Background(), record, func(sent *kgo.Record, err error) {
			if err == nil {
				Report(Event{"event": "acknowledged", "number": number, "partition": sent.Partition, "offset": sent.Offset})
			}
			promise(sent, err)
		})
		time.Sleep(s.Pause)
	}
	if err := client.Flush(context.Background()); err != nil {
		return err
	}
	return first.Err()
}

// transactions begins each transaction as soon as the one before has ended.
func transactions(ctx context.Context, s *Settings) error {
	client, err := kgo.NewClient(append(options(s), kgo.TransactionalID(s.ID))...)
	if err != nil {
		return err
	}
	defer client.Close()
	for number := 0; number < s.Count; number++ {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		var first kgo.FirstErrPromise
		for index := range s.Records {
			text := fmt.Sprintf("%s/%d/%d", s.ID, number, index)
			record := &kgo.Record{Topic: s.Topic, Partition: int32(index % s.Partitions), Value: []byte(text)}
			client.Produce(ctx, record, first.Promise())
		}
		if err := first.Err(); err != nil {
			return fmt.Errorf("%s, transaction %d: %w", s.ID, number, err)
		}
		if err := client.EndTransaction(ctx, kgo.TransactionEndTry(Committed(number))); err != nil {
			return fmt.Errorf("%s, transaction %d: %w", s.ID, number, err)
		}
		Report(Event{"event": "ended", "id": s.ID, "number": number, "committed": Committed(number)})
	}
	return nil
}

// member reads as one of a group, reports each record, then commits; until SIGTERM.
func member(ctx context.Context, s *Settings) error {
	client, err := kgo.NewClient(append(append(options(s), membership(s)...), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.FetchMaxBytes(32<<20), kgo.FetchMaxPartitionBytes(8<<20))...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		turn, cancel := context.WithTimeout(ctx, time.Second)
		fetches := client.PollFetches(turn)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) { ReportRecord(r.Partition, r.Offset, r.Value) })
		if !fetches.Empty() {
			// A commit that a rebalance or a dead coordinator refuses is made up for by the next one.
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				Report(Event{"event": "commit refused", "error": err.Error()})
			}
		}
		client.AllowRebalance()
	}
	return nil
}

// etl copies a topic into another, each poll a transaction that commits the offsets too; until SIGTERM.
func etl(ctx context.Context, s *Settings) error {
	session, err := kgo.NewGroupTransactSession(append(append(options(s), membership(s)...),
		kgo.TransactionalID(s.ID), kgo.TransactionTimeout(20*time.Second), kgo.RequireStableFetchOffsets(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		fetches := session.PollRecords(ctx, s.Records)
		if ctx.Err() != nil {
			return nil
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var first kgo.FirstErrPromise
		fetches.EachRecord(func(r *kgo.Record) {
			copied := &kgo.Record{Topic: s.Target, Partition: r.Partition, Value: r.Value}
			session.Produce(context.Background(), copied, first.Promise())
		})
		commit := first.Err() == nil
		committed, err := session.End(context.Background(), kgo.TransactionEndTry(commit))
		if err != nil {
			return fmt.Errorf("the end of a transaction: %w", err)
		}
		Report(Event{"event": "ended", "id": s.ID, "committed": committed, "records": fetches.NumRecords()})
	}
}
