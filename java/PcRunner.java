import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The Java Parallel Consumer, driven from the command line: the peer that Perkey is measured against
 * and hands its committed progress to and from.
 *
 * <p>{@code PcRunner bench|handover|resume|stuck name=value ...}; one line of JSON on stdout. Names:
 * bootstrap, topic, group, ordering (KEY, PARTITION, UNORDERED), concurrency, and those of the mode.
 */
public final class PcRunner {
    private PcRunner() {}

    public static void main(String[] args) throws Exception {
        Map<String, String> options = parse(args);
        switch (args[0]) {
            case "bench" -> Bench.run(options);
            case "handover" -> Handover.untilHandled(options);
            case "stuck" -> Stuck.run(options);
            case "resume" -> Handover.untilIdle(options);
            default -> throw new IllegalArgumentException("unknown mode: " + args[0]);
        }
    }

    private static Map<String, String> parse(String[] args) {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair[1]);
        }
        return options;
    }

    static ParallelStreamProcessor<byte[], byte[]> processor(Map<String, String> options) {
        return ParallelStreamProcessor.createEosStreamProcessor(
                ParallelConsumerOptions.<byte[], byte[]>builder()
                        .consumer(consumer(options))
                        .ordering(ProcessingOrder.valueOf(options.get("ordering")))
                        .maxConcurrency(Integer.parseInt(options.get("concurrency")))
                        .build());
    }

    private static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> options) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", options.get("bootstrap"));
        properties.put("group.id", options.get("group"));
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        if (options.containsKey("session_timeout_ms")) {
            properties.put("session.timeout.ms", options.get("session_timeout_ms"));
        }
        properties.put("max.poll.records", options.getOrDefault("max_poll_records", "500"));
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(properties, bytes, bytes);
    }
}
