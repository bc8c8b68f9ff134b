// kafkajs as a servant of the test suite: one JSON order per line in, one JSON answer per line out.
// Bytes travel as base64; a failure answers {"error": text, "code": Kafka's number}. kafkajs consumes as a member of a
// group alone, so the order to consume makes a group of one for itself.
'use strict'

const readline = require('node:readline')
const { CompressionTypes, Kafka, Partitioners, logLevel } = require('kafkajs')
const groups = require('./groups.js')

const codecs = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }
const bytes = text => (text === null || text === undefined ? null : Buffer.from(text, 'base64'))
let stream = null
let alone = 0

const kafka = order =>
  new Kafka({
    brokers: [order.bootstrap],
    clientId: 'klamm-compat',
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 60 },
  })

const withAdmin = async (order, work) => {
  const admin = kafka(order).admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

const newProducer = order =>
  kafka(order).producer({
    createPartitioner: Partitioners.DefaultPartitioner,
    allowAutoTopicCreation: false,
    idempotent: order.idempotent,
    maxInFlightRequests: order.idempotent ? 1 : undefined,
  })

const acks = order => (order.acks === 'all' ? -1 : Number(order.acks))

const failure = problem => {
  let cause = problem
  while (cause.code === undefined && (cause.cause || cause.originalError)) cause = cause.cause || cause.originalError
  return { error: String(problem.message), code: cause.code === undefined ? -1 : cause.code }
}

const base64 = data => (data === null || data === undefined ? null : Buffer.from(data).toString('base64'))

const shown = one => ({
  offset: Number(one.offset),
  timestamp: Number(one.timestamp),
  key: base64(one.key),
  value: base64(one.value),
  headers: Object.entries(one.headers || {}).flatMap(([name, values]) =>
    [].concat(values).map(value => [name, base64(value)])
  ),
})

const message = record => {
  const headers = {}
  for (const [name, value] of record.headers || []) headers[name] = bytes(value)
  return {
    partition: record.partition,
    key: bytes(record.key),
    value: bytes(record.value),
    headers,
    timestamp: record.timestamp ? String(record.timestamp) : undefined,
  }
}

const orders = {
  ...groups(kafka),

  async create(order) {
    await withAdmin(order, admin =>
      admin.createTopics({
        topics: [
          {
            topic: order.topic,
            numPartitions: order.partitions,
            replicationFactor: 1,
            configEntries: Object.entries(order.configs).map(([name, value]) => ({ name, value })),
          },
        ],
      })
    )
    return {}
  },

  async delete(order) {
    await withAdmin(order, admin => admin.deleteTopics({ topics: [order.topic] }))
    return {}
  },

  async topics(order) {
    const metadata = await withAdmin(order, admin => admin.fetchTopicMetadata())
    return { topics: Object.fromEntries(metadata.topics.map(topic => [topic.name, topic.partitions.length])) }
  },

  async produce(order) {
    const producer = newProducer(order)
    await producer.connect()
    try {
      const answers = await producer.send({
        topic: order.topic,
        acks: acks(order),
        compression: codecs[order.codec],
        messages: order.records.map(message),
      })
      const next = new Map((answers || []).map(one => [one.partition, Number(one.baseOffset)]))
      const results = order.records.map(({ partition }) => {
        if (!next.has(partition)) return { offset: -1 }
        const offset = next.get(partition)
        next.set(partition, offset + 1)
        return { offset }
      })
      return { results }
    } catch (problem) {
      return { results: order.records.map(() => failure(problem)) }
    } finally {
      await producer.disconnect()
    }
  },

  async consume(order) {
    const consumer = kafka(order).consumer({
      groupId: `alone-${process.pid}-${++alone}`,
      maxWaitTimeInMs: 100,
      readUncommitted: order.isolation !== 'read_committed',
      allowAutoTopicCreation: false,
    })
    const records = []
    const deadline = Date.now() + 30000
    await consumer.connect()
    try {
      await consumer.subscribe({ topic: order.topic, fromBeginning: true })
      // Of a coordinator that is still loading it tries again behind our back, and cannot seek before it has joined.
      const joined = new Promise(done => consumer.on(consumer.events.GROUP_JOIN, done))
      let next = order.offset
      await consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message: one }) => {
          if (partition !== order.partition || Number(one.offset) < next) return // read before the seek, or twice
          next = Number(one.offset) + 1
          records.push(shown(one))
        },
      })
      await Promise.race([joined, new Promise(done => setTimeout(done, 30000))])
      consumer.seek({ topic: order.topic, partition: order.partition, offset: String(order.offset) })
      while (records.length < order.count && Date.now() < deadline) await new Promise(done => setTimeout(done, 10))
    } finally {
      await consumer.disconnect()
    }
    return { records: records.slice(0, order.count) }
  },

  async ends(order) {
    const offsets = await withAdmin(order, admin => admin.fetchTopicOffsets(order.topic))
    const at = offsets.find(one => one.partition === order.partition)
    return { earliest: Number(at.low), latest: Number(at.high) }
  },

  async offset_for_time(order) {
    const offsets = await withAdmin(order, admin => admin.fetchTopicOffsetsByTimestamp(order.topic, order.timestamp))
    return { offset: Number(offsets.find(one => one.partition === order.partition).offset) }
  },

  async stream_start(order) {
    const producer = newProducer(order)
    await producer.connect()
    stream = { producer, acked: [], failures: [], sent: 0, stopped: false }
    const own = stream
    own.done = (async () => {
      while (!own.stopped) {
        const number = own.sent++
        try {
          const messages = [{ partition: order.partition, value: String(number) }]
          const [one] = await producer.send({ topic: order.topic, acks: acks(order), messages })
          own.acked.push([number, Number(one.baseOffset)])
        } catch (problem) {
          own.failures.push(String(problem.message))
        }
        await new Promise(resolve => setTimeout(resolve, order.pause_ms))
      }
    })()
    return {}
  },

  async stream_stop() {
    stream.stopped = true
    await stream.done
    await stream.producer.disconnect()
    return { acked: stream.acked, failures: stream.failures, sent: stream.sent }
  },
}

const main = async () => {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer
    try {
      const order = JSON.parse(line)
      answer = await orders[order.op](order)
    } catch (problem) {
      answer = failure(problem)
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
