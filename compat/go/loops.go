package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Transactional producers that begin the next transaction as soon as the last is decided, on every partition.
func transactionLoops(o *order) (answer, error) {
	producers := make([]answer, len(o.TransactionalIDs))
	var wait sync.WaitGroup
	for i, id := range o.TransactionalIDs {
		wait.Add(1)
		go func() {
			defer wait.Done()
			ended, err := transactionLoop(o, id)
			producers[i] = answer{"id": id, "ended": ended, "failure": nil}
			if err != nil {
				producers[i]["failure"] = err.Error()
			}
		}()
	}
	wait.Wait()
	return answer{"producers": producers}, nil
}

func transactionLoop(o *order, id string) (int, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(o.Bootstrap, ",")...), kgo.TransactionalID(id), kgo.TransactionTimeout(60*time.Second),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0),
	)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 25*patience)
	defer cancel()
	for number := range o.Transactions {
		if err := transact(ctx, client, o, id, number); err != nil {
			return number, err
		}
	}
	return o.Transactions, nil
}

func transact(ctx context.Context, client *kgo.Client, o *order, id string, number int) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	promise := kgo.AbortingFirstErrPromise(client)
	for partition := range o.Partitions {
		value := fmt.Sprintf("%s/%d/%d", id, number, partition)
		client.Produce(ctx, &kgo.Record{Topic: o.Topic, Partition: partition, Value: []byte(value)}, promise.Promise())
	}
	if err := promise.Err(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TransactionEndTry(number%o.AbortEvery != 0))
}
