import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.logging.LogManager;

/**
 * Writers at full speed or at a rate, and readers that follow, all with Pravega's Java client: what `bench/java_client.py`
 * runs. Writers and readers share one factory, and with it its connections.
 *
 * <p>Options are `name=value` arguments, all of them required. It prints three lines: `begin` and `end` at the bounds of the
 * measured time, between which the caller reads the server's CPU, and then the figures as one JSON object.
 *
 * <p>A latency begins when an event was due, at a fixed rate, or else when it was given to the writer, and is counted when
 * that was in the measured time and its acknowledgement (or the event, at a reader) arrives within it, too. So an event held
 * up by the one before it is late by all of that. When events are due is counted anew from the beginning of the measured
 * time: what a Java that still compiles itself did not send before is nobody's delay.
 */
public final class EventLoad {
    private static final String SCOPE = "bench";
    private static final String STREAM = "events";
    private static final String GROUP = "followers";
    private static final int KEY_COUNT = 10_000;
    private static final long READ_TIMEOUT_MS = 500;
    private static final long SECOND_NS = TimeUnit.SECONDS.toNanos(1);
    private static final long SAMPLE_NS = TimeUnit.MILLISECONDS.toNanos(20);
    private static final long TICK_NS = TimeUnit.MICROSECONDS.toNanos(200);

    private final Options options;
    private final LongAdder sent = new LongAdder();
    private final LongAdder acknowledged = new LongAdder();
    private final List<Follower> followers = new ArrayList<>();
    private final AtomicReference<Throwable> failure = new AtomicReference<>();
    private final byte[] payload;
    private volatile boolean isWriting = true;
    private volatile boolean isReading = true;
    /** When the measured time began; before that, earlier than anything. */
    private volatile long measuredFrom = Long.MIN_VALUE;
    private volatile Histogram acks = new Histogram();
    private volatile Histogram arrivals = new Histogram();

    private EventLoad(Options options) {
        this.options = options;
        this.payload = new byte[options.eventBytes];
        new Random(1).nextBytes(payload);
    }

    public static void main(String[] arguments) throws Exception {
        LogManager.getLogManager().reset();
        String figures = new EventLoad(new Options(arguments)).run();
        System.out.println(figures);
        // Threads of the client would keep the machine alive for a while.
        Runtime.getRuntime().halt(0);
    }

    private String run() throws Exception {
        ClientConfig client = ClientConfig.builder().controllerURI(URI.create(options.controller)).build();
        try (StreamManager streams = StreamManager.create(client)) {
            streams.createScope(SCOPE);
            ScalingPolicy scaling = ScalingPolicy.fixed(options.segments);
            streams.createStream(SCOPE, STREAM, StreamConfiguration.builder().scalingPolicy(scaling).build());
        }
        if (options.readers > 0) {
            try (ReaderGroupManager groups = ReaderGroupManager.withScope(SCOPE, client)) {
                groups.createReaderGroup(GROUP, ReaderGroupConfig.builder().stream(Stream.of(SCOPE, STREAM)).build());
            }
        }
        EventStreamClientFactory factory = EventStreamClientFactory.withScope(SCOPE, client);
        List<Thread> readers = new ArrayList<>();
        for (int number = 0; number < options.readers; number++) {
            String name = "reader-" + number;
            EventStreamReader<ByteBuffer> reader =
                factory.createReader(name, GROUP, new ByteBufferSerializer(), ReaderConfig.builder().build());
            Follower follower = new Follower(reader);
            followers.add(follower);
            readers.add(start(name, follower::follow));
        }
        EventWriterConfig writing = EventWriterConfig.builder().enableConnectionPooling(options.isPooled).build();
        List<Thread> writers = new ArrayList<>();
        for (int number = 0; number < options.writers; number++) {
            EventStreamWriter<ByteBuffer> writer =
                factory.createEventWriter(STREAM, new ByteBufferSerializer(), writing);
            writers.add(start("writer-" + number, () -> write(writer)));
        }

        sleepUntil(System.nanoTime() + (long) (options.warmUpS * SECOND_NS));
        Figures figures = measure();
        isWriting = false;
        long stopped = System.nanoTime();
        long deadline = stopped + (long) (options.drainTimeoutS * SECOND_NS);
        for (Thread writer : writers) {
            writer.join();
        }
        // A flush ends before the futures of what it flushed are told.
        waitUntil(() -> acknowledged.sum() == sent.sum(), deadline);
        figures.put("events_sent", sent.sum());
        figures.put("events_acknowledged", acknowledged.sum());
        figures.put("flushed_after_s", seconds(System.nanoTime() - stopped));
        if (options.readers > 0) {
            waitUntil(() -> eventsRead() >= sent.sum(), deadline);
            figures.put("events_read", eventsRead());
            figures.put("drained_after_s", seconds(System.nanoTime() - stopped));
        }
        isReading = false;
        for (Thread reader : readers) {
            reader.join();
        }
        checkFailure();
        return figures.toString();
    }

    /** Measure one window; return what was counted in it. */
    private Figures measure() {
        List<Long> acknowledgedBySecond = new ArrayList<>();
        List<Long> readBySecond = new ArrayList<>();
        System.out.println("begin");
        long begin = System.nanoTime();
        measuredFrom = begin;
        acks = new Histogram();
        arrivals = new Histogram();
        followers.forEach(follower -> follower.beginGaps(begin));
        long sentBefore = sent.sum();
        long acknowledgedBefore = acknowledged.sum();
        long readBefore = eventsRead();
        long acknowledgedNow = acknowledgedBefore;
        long readNow = readBefore;
        long end = begin + (long) (options.seconds * SECOND_NS);
        long inFlight = 0;
        long samples = 0;
        long sample = begin;
        for (long next = begin + SECOND_NS; next <= end; next += SECOND_NS) {
            for (; sample < next; sample += SAMPLE_NS) {
                sleepUntil(sample);
                inFlight += Math.max(0, sent.sum() - acknowledged.sum());
                samples++;
            }
            sleepUntil(next);
            checkFailure();
            long acknowledgedThen = acknowledgedNow;
            long readThen = readNow;
            acknowledgedNow = acknowledged.sum();
            readNow = eventsRead();
            acknowledgedBySecond.add(acknowledgedNow - acknowledgedThen);
            readBySecond.add(readNow - readThen);
        }
        sleepUntil(end);
        acknowledgedNow = acknowledged.sum();
        readNow = eventsRead();
        long sentNow = sent.sum();
        long took = System.nanoTime() - begin;
        System.out.println("end");
        Figures figures = new Figures();
        figures.put("measured_s", seconds(took));
        figures.put("events_sent_then", sentNow - sentBefore);
        figures.put("events_acknowledged_then", acknowledgedNow - acknowledgedBefore);
        figures.put("in_flight_mean", inFlight / Math.max(samples, 1));
        figures.put("in_flight_at_end", sentNow - acknowledgedNow);
        figures.put("acknowledged_by_second", acknowledgedBySecond);
        acks.report(figures, "ack");
        if (options.readers > 0) {
            figures.put("events_read_then", readNow - readBefore);
            figures.put("lag_at_end", Math.max(0, acknowledgedNow - readNow));
            figures.put("read_by_second", readBySecond);
            long longest = 0;
            for (Follower follower : followers) {
                longest = Math.max(longest, follower.longestGap(begin + took));
            }
            figures.put("longest_gap_s", seconds(longest));
            arrivals.report(figures, "arrival");
        }
        return figures;
    }

    /** Write until told to stop: as fast as the client takes it, or this writer's share of the rate. */
    private void write(EventStreamWriter<ByteBuffer> writer) {
        double periodNs = options.ratePerS > 0 ? 1e9 * options.writers / options.ratePerS : 0;
        // Ten events and more in a tick are sent together: a sleep for each few would take CPU that the load needs.
        long tickNs = 10 * periodNs <= TICK_NS ? TICK_NS : 0;
        long begin = System.nanoTime();
        long first = 0;
        for (long number = 0; isWriting; number++) {
            long due = System.nanoTime();
            if (periodNs > 0) {
                if (begin < measuredFrom) {
                    begin = measuredFrom;
                    first = number;
                }
                long planned = begin + (long) ((number - first) * periodNs);
                if (planned > due) {
                    sleepUntil(Math.max(planned, due + tickNs));
                }
                due = planned;
            }
            long start = due;
            ByteBuffer event = ByteBuffer.wrap(payload.clone());
            event.putLong(0, start);
            writer.writeEvent(Options.KEYS[(int) (number % KEY_COUNT)], event).whenComplete((nothing, error) -> {
                if (error == null) {
                    acknowledged.increment();
                    record(acks, start);
                } else {
                    failure.compareAndSet(null, error);
                }
            });
            sent.increment();
        }
        writer.flush();
    }

    /** Count a latency that ends now, if it began in the measured time. */
    private void record(Histogram latencies, long start) {
        if (start >= measuredFrom) {
            latencies.record(System.nanoTime() - start);
        }
    }

    private long eventsRead() {
        long count = 0;
        for (Follower follower : followers) {
            count += follower.count;
        }
        return count;
    }

    private Thread start(String name, Runnable body) {
        Thread thread = new Thread(body, name);
        thread.setDaemon(true);
        thread.setUncaughtExceptionHandler((which, error) -> failure.compareAndSet(null, error));
        thread.start();
        return thread;
    }

    private void checkFailure() {
        Throwable error = failure.get();
        if (error != null) {
            throw new IllegalStateException("the load failed", error);
        }
    }

    private void waitUntil(BooleanSupplier isDone, long deadline) throws InterruptedException {
        while (!isDone.getAsBoolean() && System.nanoTime() < deadline) {
            checkFailure();
            Thread.sleep(1);
        }
    }

    /** Sleep; a park may end early. */
    private static void sleepUntil(long time) {
        for (long left = time - System.nanoTime(); left > 0; left = time - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private static double seconds(long ns) {
        return Math.round(ns / 1e6) / 1e3;
    }

    /** One reader. Only its own thread writes the fields. */
    private final class Follower {
        private final EventStreamReader<ByteBuffer> reader;
        private volatile long count;
        private volatile long latest;
        private volatile long longestGap;
        private volatile long gapsFrom = Long.MAX_VALUE;

        Follower(EventStreamReader<ByteBuffer> reader) {
            this.reader = reader;
        }

        void follow() {
            while (isReading) {
                ByteBuffer event = reader.readNextEvent(READ_TIMEOUT_MS).getEvent();
                if (event == null) {
                    continue;
                }
                if (event.remaining() != options.eventBytes) {
                    throw new IllegalStateException("an event of " + event.remaining() + " bytes was read");
                }
                long now = System.nanoTime();
                record(arrivals, event.getLong(event.position()));
                long from = gapsFrom;
                if (now > from) {
                    longestGap = Math.max(longestGap, now - Math.max(from, latest));
                }
                latest = now;
                count++;
            }
        }

        void beginGaps(long time) {
            gapsFrom = time;
        }

        /** The longest time without an event since `beginGaps`, in ns. */
        long longestGap(long now) {
            return Math.max(longestGap, now - Math.max(gapsFrom, latest));
        }
    }

    /** Latencies in ns, in 64 classes for each power of two: within 1.6 %. Any thread may record. */
    private static final class Histogram {
        private static final int BITS = 6;
        private final AtomicLongArray counts = new AtomicLongArray(64 << BITS);

        void record(long valueNs) {
            long value = Math.max(valueNs, 1);
            int power = Math.max(0, 63 - Long.numberOfLeadingZeros(value) - BITS);
            counts.incrementAndGet((power << BITS) + (int) (value >>> power));
        }

        void report(Figures figures, String name) {
            long total = 0;
            int last = 0;
            for (int index = 0; index < counts.length(); index++) {
                total += counts.get(index);
                last = counts.get(index) > 0 ? index : last;
            }
            figures.put(name + "_count", total);
            if (total > 0) {
                figures.put(name + "_p50_ms", atShare(0.5, total));
                figures.put(name + "_p95_ms", atShare(0.95, total));
                figures.put(name + "_p99_ms", atShare(0.99, total));
                figures.put(name + "_max_ms", lowestMs(last + 1));
            }
        }

        private double atShare(double share, long total) {
            long below = 0;
            int index = -1;
            while (below <= total * share && index < counts.length() - 1) {
                below += counts.get(++index);
            }
            return lowestMs(index + 1);
        }

        private static double lowestMs(int index) {
            int power = Math.max(0, (index >>> BITS) - 1);
            return Math.round((double) ((long) (index - (power << BITS)) << power) / 1e3) / 1e3;
        }
    }

    /** Figures in the order in which they were put, as JSON. */
    private static final class Figures {
        private final List<String> members = new ArrayList<>();

        /** Put a number or a list of numbers. */
        void put(String name, Object value) {
            members.add(String.format(Locale.ROOT, "\"%s\": %s", name, value));
        }

        @Override
        public String toString() {
            return "{" + String.join(", ", members) + "}";
        }
    }

    private static final class Options {
        /** Routing keys: consecutive events go to segments here and there. */
        static final String[] KEYS = new String[KEY_COUNT];

        static {
            for (int number = 0; number < KEY_COUNT; number++) {
                KEYS[number] = Integer.toString(number);
            }
        }

        final String controller;
        final int segments;
        final int writers;
        final int readers;
        final int eventBytes;
        final double ratePerS;
        final double warmUpS;
        final double seconds;
        final double drainTimeoutS;
        final boolean isPooled;
        private final List<String> arguments;

        Options(String[] given) {
            arguments = List.of(given);
            controller = value("controller");
            segments = Integer.parseInt(value("segments"));
            writers = Integer.parseInt(value("writers"));
            readers = Integer.parseInt(value("readers"));
            eventBytes = Integer.parseInt(value("event-bytes"));
            ratePerS = Double.parseDouble(value("rate"));
            warmUpS = Double.parseDouble(value("warm-up-seconds"));
            seconds = Double.parseDouble(value("seconds"));
            drainTimeoutS = Double.parseDouble(value("drain-seconds"));
            isPooled = Boolean.parseBoolean(value("pooled"));
        }

        private String value(String name) {
            return arguments.stream()
                .filter(argument -> argument.startsWith(name + "="))
                .map(argument -> argument.substring(name.length() + 1))
                .findFirst()
                .orElseThrow(() -> new IllegalArgumentException("no " + name + "="));
        }
    }
}
