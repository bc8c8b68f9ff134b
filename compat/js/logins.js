// Logins of kafkajs: one JSON order on standard input, one JSON answer on standard output.
//
// The client logs in, creates a topic, writes records to it and reads them back. Without a mechanism it has a
// certificate; without an authority it does not encrypt.
'use strict'

const fs = require('node:fs')
const { Kafka, Partitioners, logLevel } = require('kafkajs')

const settings = order => ({
  brokers: [order.bootstrap],
  clientId: 'klamm-compat',
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 100, maxRetryTime: 500, retries: 5 },
  // So long before its end a session is renewed; the default, ten seconds, is more than the tests' sessions have, and a
  // login less than a second after the last one is refused, by Kafka, too.
  reauthenticationThreshold: 1000,
  ssl: order.authority && {
    ca: [fs.readFileSync(order.authority)],
    key: order.key && fs.readFileSync(order.key),
    cert: order.chain && fs.readFileSync(order.chain),
  },
  sasl: order.mechanism && {
    mechanism: order.mechanism.toLowerCase(),
    username: order.user,
    password: order.password,
    oauthBearerProvider: async () => ({ value: order.token }),
  },
})

const use = async order => {
  const kafka = new Kafka(settings(order))
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic: order.topic, numPartitions: 1, replicationFactor: 1 }], waitForLeaders: true })
  await admin.disconnect()
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, allowAutoTopicCreation: false })
  await producer.connect()
  for (let number = 0; number < order.count; number++)
    await producer.send({ topic: order.topic, messages: [{ value: String(number) }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: order.topic })
  await consumer.connect()
  await consumer.subscribe({ topic: order.topic, fromBeginning: true })
  let read = 0
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${read} records were read`)), 60_000).unref()
    consumer.run({ eachMessage: async () => ++read === order.count && resolve() }).catch(reject)
  })
  await consumer.disconnect()
  return { read }
}

use(JSON.parse(fs.readFileSync(0, 'utf8')))
  .catch(problem => ({ error: String(problem.message) }))
  .then(answer => {
    process.stdout.write(JSON.stringify(answer) + '\n', () => process.exit(0))
  })
